# SPDX-License-Identifier: Apache-2.0
"""A real Chromium without a window, told what to do over its debugging pipe (two descriptors, JSON and a zero byte)."""
import base64
import collections
import itertools
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time

from harness import PATIENCE

NAMES = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome"]


def find():
    """The browser's program, or None."""
    given = os.environ.get("KVROUTE_CHROMIUM")
    return given or next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="kvroute-browser-")
        to_child, self.out = os.pipe()
        self.back, from_child = os.pipe()

        def descriptors():  # the browser reads commands from 3 and writes to 4
            os.dup2(to_child, 63)
            os.dup2(from_child, 64)
            os.dup2(63, 3)
            os.dup2(64, 4)
        self.process = subprocess.Popen(
            [find(), "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--hide-scrollbars", "--no-first-run", "--disable-background-networking", "--disable-component-update",
             "--user-data-dir=" + self.profile, "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=descriptors, close_fds=False, start_new_session=True)
        os.close(to_child)
        os.close(from_child)
        self.numbers = itertools.count(1)
        self.answers = {}
        self.events = collections.defaultdict(queue.SimpleQueue)  # by session
        self.lock = threading.Condition()
        self.ended = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        rest = b""
        while True:
            data = os.read(self.back, 1 << 20)
            if not data:
                break
            *messages, rest = (rest + data).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    with self.lock:
                        self.answers[message["id"]] = message
                        self.lock.notify_all()
                else:
                    self.events[message.get("sessionId")].put(message)
        with self.lock:
            self.ended = True
            self.lock.notify_all()

    def call(self, method, session=None, timeout=30, **params):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        with self.lock:
            done = self.lock.wait_for(lambda: number in self.answers or self.ended, timeout * PATIENCE)
            assert done, f"the browser did not answer {method}"
            assert number in self.answers, f"the browser ended during {method}"
            answer = self.answers.pop(number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def page(self, **options):
        return Page(self, **options)

    def close(self):
        try:
            self.call("Browser.close", timeout=5)
        except (AssertionError, OSError):
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, 9)
            self.process.wait()
        os.close(self.out)
        shutil.rmtree(self.profile, ignore_errors=True)


class Page:
    """A tab. Everything it asked for and complained about is kept."""

    def __init__(self, browser, width=1400, height=900, dark=False):
        self.browser = browser
        context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self.context = context
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.requests, self.complaints, self.failures = [], [], []
        for domain in ["Page", "Runtime", "Log", "Network"]:
            self.call(domain + ".enable")
        self.look(width, height, dark)

    def call(self, method, **params):
        result = self.browser.call(method, self.session, **params)
        self.listen()
        return result

    def listen(self):
        """Takes in what happened so far."""
        events = self.browser.events[self.session]
        while not events.empty():
            event = events.get()
            params = event["params"]
            if event["method"] == "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            elif event["method"] == "Network.loadingFailed" and not params.get("canceled"):
                self.failures.append(params)
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(params["args"]))
            elif event["method"] == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                self.complaints.append(json.dumps(params["entry"]))

    def look(self, width, height, dark=False):
        """Size of the window and the reader's choice of colours."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, url):
        answer = self.call("Page.navigate", url=url)
        assert "errorText" not in answer, answer
        self.wait("document.readyState === 'complete'", what="loaded")

    def run(self, script):
        """The value of an expression."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script, timeout=15, what=None):
        deadline = time.monotonic() + timeout * PATIENCE
        while True:
            value = self.run(script)
            if value:
                return value
            assert time.monotonic() < deadline, f"not within {timeout} s: {what or script}; {self.complaints}"
            time.sleep(0.05)

    def key(self, key, code=None, number=0, text=None):
        more = {"text": text} if text else {}
        for kind in ["keyDown", "keyUp"]:
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code or key, windowsVirtualKeyCode=number, **more)

    def tab(self):
        self.key("Tab", number=9)

    def write(self, text):
        self.call("Input.insertText", text=text)

    def picture(self, path):
        """The whole page, however long, as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True,
                         clip={"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1})["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def close(self):
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)
