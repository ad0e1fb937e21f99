/* base/embed.h: a file of the source tree inside the binary, so that an installed attgeo needs no data folder.
 * AG_EMBED(name, "plots/heatmap.gp") at file scope defines name (NUL-terminated) and name_end (at that NUL). Name the
 * file in the Makefile's EMBEDDED list, so that a change rebuilds. */
#ifndef AG_BASE_EMBED_H
#define AG_BASE_EMBED_H

#define AG_EMBED(name, path)                                                                                           \
    extern const char name[], name##_end[];                                                                            \
    __asm__(".pushsection .rodata\n.hidden " #name "\n.global " #name "\n" #name ":\n.incbin \"" path "\"\n"           \
            ".hidden " #name "_end\n.global " #name "_end\n" #name "_end:\n.byte 0\n.popsection\n")

#endif
