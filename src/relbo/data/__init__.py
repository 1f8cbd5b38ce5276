"""Data: named sets with pinned content, and any file of 0s and 1s.

    data = relbo.data.load("digits")                # embedded
    data = relbo.data.load("binarized-mnist")       # `relbo data fetch binarized-mnist` first
    data = relbo.data.load("mine.npz")              # `train`, `valid`, `test`: 0/1 arrays of one width
    data = relbo.data.load("folder")                # rows that stay on disk: `relbo data convert mine.npz folder`

Nothing is read before `load` is called.
"""

from relbo.data.baseline import independent_nats as independent_nats
from relbo.data.dataset import Dataset as Dataset
from relbo.data.fetching import fetch as fetch
from relbo.data.loading import DEFAULT as DEFAULT
from relbo.data.loading import load as load
from relbo.data.row_directory import check_rows as check_rows
from relbo.data.row_files import RowFiles as RowFiles
from relbo.data.row_writing import convert_rows as convert_rows
from relbo.data.row_writing import write_rows as write_rows
from relbo.data.sources import SOURCES as SOURCES
from relbo.data.sources import Source as Source
