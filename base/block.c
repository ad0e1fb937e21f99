/* base/block.c: the names of block.h. */
#include "base/block.h"

#include <stddef.h>

const char *const ag_tap_names[AG_TAP_COUNT + 1] = {"proj", "conv", "norm", "rope", NULL};
const char *const ag_role_names[AG_ROLE_COUNT + 1] = {"haystack", "needle",  "distractor", "question",
                                                      "answer",   "special", NULL};
