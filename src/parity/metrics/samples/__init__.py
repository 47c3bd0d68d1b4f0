"""What metrics see of a cell: a module for each kind of model.

Sample(files)      the cell's columns, pictures, texts ..., each read or computed when it is first asked for; what is
                   not its own is asked of `parity.metrics.files`. `seen` is what a network sees in its pictures:
                   features [n, d] and more by kind, {} where there is no such network.
drawn, looked_at   pictures that quality is measured against, and what the network sees in them
"""
