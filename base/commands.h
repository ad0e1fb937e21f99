/* base/commands.h: the commands that attgeo.c puts into its table, each defined in the folder that it belongs to. */
#ifndef AG_BASE_COMMANDS_H
#define AG_BASE_COMMANDS_H

#include "base/cli.h"

extern const struct ag_command command_prompts;  /* data/cmd_prompts.c */
extern const struct ag_command command_probe;    /* probe/cmd_probe.c */
extern const struct ag_command command_geometry; /* probe/cmd_geometry.c: needs the dump reader */
extern const struct ag_command command_taylor;   /* probe/cmd_taylor.c */
extern const struct ag_command command_merge;    /* probe/cmd_merge.c */
extern const struct ag_command command_plot;     /* plots/cmd_plot.c */
extern const struct ag_command command_info;     /* probe/cmd_info.c */

#endif
