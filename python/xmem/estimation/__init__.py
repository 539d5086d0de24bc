"""From a run to the answer: what it would hold on a GPU, its replay there, the verdict and the evidence."""
