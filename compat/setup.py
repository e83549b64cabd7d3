"""Has an editable installation take the .pth file along, too; all else is in pyproject.toml."""

from setuptools import Distribution, setup


class DistributionWithData(Distribution):
    """setuptools' editable_wheel installs data files where `has_data()` says so, which no distribution
    has."""

    def has_data(self) -> bool:
        return self.has_data_files()


setup(distclass=DistributionWithData)
