/* The texts that sources of kernels include for the simulated device, ended by zeros: see nvrtc.c. */
    .macro text name, file
    .global \name
    .hidden \name
\name:
    .incbin "\file"
    .byte 0
    .endm
    .section .rodata
    text simulated_text_device, SIMULATED
    text simulated_text_simulator, SIMULATOR
    .section .note.GNU-stack, "", %progbits
