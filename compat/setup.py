"""Makes an editable installation install the .pth file too; the other settings are in pyproject.toml."""

from setuptools import Distribution, setup


class DistributionWithData(Distribution):
    """A setuptools distribution whose `has_data()` is true if the distribution has data files.

    setuptools' editable_wheel installs data files only then, and the standard class lacks the method.
    """

    def has_data(self) -> bool:
        return self.has_data_files()


setup(distclass=DistributionWithData)
