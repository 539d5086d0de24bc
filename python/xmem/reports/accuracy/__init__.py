"""Accuracy of estimates of measured runs: the accuracy page and the scorecard."""
