"""A file that needs a package which is not there."""

import a_package_that_is_nowhere  # noqa: F401
