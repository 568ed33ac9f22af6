"""Layer 0: values and laws. No I/O, no asyncio, no clock."""
