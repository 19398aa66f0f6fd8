"""Post-training with TRL; methods/ has the methods."""

import logging

# bitsandbytes, which PEFT imports, warns on CPUs with AVX512-BF16 that it has no kernel for packed 4-bit weights, which
# load_in_4_bits turns off
logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(
    lambda record: not record.getMessage().startswith("Failed to load CPU gemm_4bit_forward")
)
