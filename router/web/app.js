/* SPDX-License-Identifier: Apache-2.0 */
/* Asks the router and shows what it says. */
import { $, el, fill, say } from "./dom.js";
import { seconds } from "./format.js";
import { drawCurve, drawRules, drawSpread, drawTime, drawTruth } from "./graphs.js";
import { Histories } from "./model.js";
import { showAccount, showAccounts, showAlarms, showDecisions, showFleet, showReasons, showSpoilers, showVerdict } from "./views.js";

const POLL_MS = 2000, POLL_MAX_MS = 60000, TIMEOUT_MS = 15000;
const BUSY = 10; /* at most one part in so many of the time is spent on asking */
const STEP_S = 4; /* of what the page remembers */
const TOKEN = "kvroute-admin-token";

class Refused extends Error {}

const state = { figures: null, policy: "kv", everything: false, failures: 0, timer: 0, polling: false, at: 0 };
const histories = new Histories(STEP_S);
const clock = () => performance.now() / 1000;
const chosen = (name) => document.querySelector(`input[name=${name}]:checked`).value;

/* ---- asking ---- */

async function ask(path) {
  const token = sessionStorage.getItem(TOKEN);
  const answer = await fetch(path, {
    headers: token ? { authorization: `Bearer ${token}` } : {},
    credentials: "omit", cache: "no-store", redirect: "error", signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  if (answer.status === 401) throw new Refused();
  if (!answer.ok) throw new Error(`${path} answered ${answer.status}`);
  return answer.json();
}

async function figures() {
  const [replicas, ledger, alarms] = await Promise.all(["kvroute/replicas", "kvroute/ledger", "kvroute/alarms"].map((p) => ask(p)));
  return { replicas, ledger, alarms };
}

async function extras() {
  if (!state.at) state.policy = (await ask("kvroute/config")).policy || "kv";
  showDecisions((await ask("kvroute/decisions")).decisions);
}

async function poll() {
  if (state.polling) return;
  state.polling = true;
  clearTimeout(state.timer);
  const began = performance.now();
  let wait = POLL_MS;
  try {
    state.figures = await figures();
    await extras();
    state.at = clock();
    state.failures = 0;
    histories.add(state.figures.ledger, state.at);
    reveal(true);
    show();
    wait = Math.max(POLL_MS, (performance.now() - began) * BUSY);
    live(`live, every ${seconds(Math.round(wait / 1000))}`, false);
  } catch (error) {
    if (error instanceof Refused) {
      state.polling = false;
      reveal(false);
      return;
    }
    state.failures++;
    wait = Math.min(POLL_MAX_MS, POLL_MS * 2 ** state.failures);
    live(`no answer${state.at ? ` for ${seconds(clock() - state.at)}` : ""}; next try in ${seconds(wait / 1000)}`, true);
  }
  state.polling = false;
  if (!document.hidden) state.timer = setTimeout(poll, Math.min(wait, POLL_MAX_MS));
}

function live(text, bad) {
  $("live").className = bad ? "live bad" : "live";
  say($("live"), text);
}

/* ---- showing ---- */

function reveal(allowed) {
  const had = sessionStorage.getItem(TOKEN);
  $("figures").hidden = !allowed;
  $("forget").hidden = !allowed || !had;
  if (allowed) {
    $("ask").hidden = true;
    return;
  }
  say($("ask-error"), had ? "This token was refused." : "");
  sessionStorage.removeItem(TOKEN);
  live("waiting for the token", false);
  $("ask").hidden = false;
  $("token").focus();
}

function show() {
  const { replicas, ledger, alarms } = state.figures;
  const window = chosen("window"), kind = chosen("kind");
  showAlarms(alarms);
  showFleet(replicas);
  showReasons(ledger);
  if (!ledger.accounts) {
    $("verdict").textContent = "The ledger is switched off (--ledger): there are no figures on reuse.";
    return;
  }
  showVerdict(ledger, window, state.policy);
  showAccount(ledger, window);
  showAccounts(ledger, kind, window, state.everything);
  showSpoilers(ledger);
  showSubjects();
  const subject = histories.get($("subject").value);
  if (subject) {
    drawTime(subject.history, clock(), window);
    drawTruth(subject.account, subject.history, clock(), window);
  }
  drawRules(ledger, window, state.policy);
  drawCurve(ledger, replicas, window);
  drawSpread(ledger, window);
}

/* Whose history is drawn. The list is left alone while it stays the same: it may be open. */
function showSubjects() {
  const value = $("subject").value;
  fill($("subject"), ...histories.list().map((s) => el("option", { value: s.key }, s.title)));
  if (value && histories.get(value)) $("subject").value = value;
}

const again = () => state.figures && show();

document.querySelectorAll("input[name=window], input[name=kind], #subject").forEach((input) => input.addEventListener("change", again));
$("more").addEventListener("click", () => {
  state.everything = !state.everything;
  again();
});
$("ask-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, $("token").value.trim());
  $("token").value = "";
  poll();
});
$("forget").addEventListener("click", () => {
  sessionStorage.removeItem(TOKEN);
  location.reload();
});
document.addEventListener("visibilitychange", () => !document.hidden && poll());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
poll();
