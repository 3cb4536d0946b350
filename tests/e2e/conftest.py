# SPDX-License-Identifier: Apache-2.0
import os
import sys

sys.path.insert(0, os.path.dirname(__file__))

from e2e_fixtures import *  # noqa: E402,F401,F403
