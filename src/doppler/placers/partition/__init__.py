"""Graph and hypergraph partitioners as placers."""
