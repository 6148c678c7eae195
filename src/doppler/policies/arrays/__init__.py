"""The dual policy at work without torch: the same networks on numpy arrays, compiled."""
