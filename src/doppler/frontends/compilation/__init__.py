"""What a compiled module is made of: guards, explanations, and the backend of torch.compile."""
