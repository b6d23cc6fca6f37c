"""StraightDP: differentially private rectified-flow transformers, as an experiment system."""

__version__ = "0.1.0"
