"""`python -m gpumem fit`: whether a PyTorch script fits a device, without the device. docs/how-to/from-pytorch.md describes it."""
