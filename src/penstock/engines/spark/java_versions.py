"""The Java that Spark runs on."""

VERSIONS = (17, 21)  # the first and the last
