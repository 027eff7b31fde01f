/* What every generated source includes: three headers as one text, fuse_header_text. */
    .section .rodata
    .global fuse_header_text
    .hidden fuse_header_text
fuse_header_text:
    .incbin PRELUDE
    .incbin VECTOR
    .incbin FUNCTIONS
    .byte 0
    .section .note.GNU-stack, "", %progbits
