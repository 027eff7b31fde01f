/* The texts that a run-time compiler includes, ended by zeros: see compiled.c. */
#define TEXT(name, file)                                                                           \
    .global name;                                                                                  \
    .hidden name;                                                                                  \
    name: .incbin file;                                                                            \
    .byte 0
    .section .rodata
    TEXT(gpu_text_rows, ROWS)
    TEXT(gpu_text_arguments, ARGUMENTS)
    TEXT(gpu_text_kit_arguments, KIT_ARGUMENTS)
    TEXT(gpu_text_kit_device, KIT_DEVICE)
    .section .note.GNU-stack, "", %progbits
