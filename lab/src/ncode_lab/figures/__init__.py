"""Drawing: takes tensors and numbers, returns matplotlib figures. One file an experiment."""
