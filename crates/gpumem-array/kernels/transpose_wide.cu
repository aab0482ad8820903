// Transposes of elements of 16 bytes. `src/kernel/text.rs` makes the text for 8 bytes of it.

#include "transpose.cuh"

TRANSPOSE(16, Wide)
