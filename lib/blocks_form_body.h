/* SPDX-License-Identifier: Apache-2.0 */
/* The body of a form; see blocks_form.h. */
#include "blocks_int.h"

#include "blocks_store_form.h"

#include "blocks_remove_form.h"

FORM_LINKAGE const struct kvr__block_form FORM_NAME = {FORM_TEXT, form_store, form_remove};
