/* attgeo.c: main and the command table, nothing else. */
#include <stdio.h>

#include "base/commands.h"
#include "kernels/kernels.h"

static const struct ag_command *const commands[] = {
    &command_prompts, &command_probe, &command_geometry, &command_taylor, &command_merge, &command_plot, &command_info,
};

int main(int argc, char **argv) {
    kern_blas_core_fix(argv); /* may start the program anew */
    return ag_cli_main(argc, argv, commands, (int)(sizeof commands / sizeof commands[0]), stdout, stderr);
}
