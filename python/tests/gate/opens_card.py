"""Stands for a module that initialises CUDA when it is imported."""

import os

FILE = open(os.environ["CARD_FILE"])
