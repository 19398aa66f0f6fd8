"""Post-training with TRL; the methods are in methods/."""

import logging

# bitsandbytes, which PEFT imports, warns on CPUs with AVX512-BF16 that it has no kernel for packed 4-bit weights;
# load_in_4_bits turns packing off
logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(
    lambda record: not record.getMessage().startswith("Failed to load CPU gemm_4bit_forward")
)
