"""Turn the URL and the options of a store into the settings of obstore and of Spark."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from penstock.errors import Invalid, Unsupported
from penstock.extras import translate_missing_extra

_URL = re.compile(
    r"(?P<scheme>[a-z0-9+.-]+)://(?P<bucket>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<prefix>(/[A-Za-z0-9._=-]+)*)/?"
)
_SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az"}
_CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "proxy_url",
        "proxy_ca_certificate",
        "proxy_excludes",
        "root_certificate",
        "user_agent",
    }
)
_ENDPOINTS = ("endpoint", "endpoint_url", "endpoint_url_s3")
_REQUEST_SECONDS = 3_600  # of one request with its body; the read timeout ends a stalled one earlier

# Option → name of the Hadoop setting below `fs.s3a.bucket.<bucket>`.
_SPARK_NAMES = {
    "access_key_id": "access.key",
    "secret_access_key": "secret.key",
    "session_token": "session.token",
    "token": "session.token",
    "region": "endpoint.region",
    "default_region": "endpoint.region",
    **dict.fromkeys(_ENDPOINTS, "endpoint"),
}
_TEMPORARY_CREDENTIALS = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A bucket, or a container, and the prefix of all keys in it."""

    scheme: str  # s3, gs or az
    bucket: str
    prefix: str  # without a slash at its ends

    @classmethod
    def parse(cls, text: str) -> "StoreUrl":
        """Parse `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`.

        Raises:
            Invalid: the text is not such a URL; it may contain credentials, so the message does not repeat it
            Unsupported: the scheme is not supported
        """
        scheme = text.partition("://")[0]
        if scheme == "hdfs":
            raise Unsupported("unsupported_store.hdfs")
        match = _URL.fullmatch(text)
        if match is None or match["scheme"] not in _SCHEMES or {".", ".."} & set(match["prefix"].split("/")):
            raise Invalid("bad_store_url", {"schemes": ", ".join(f"{name}://" for name in ("s3", "gs", "az"))})
        return cls(_SCHEMES[match["scheme"]], match["bucket"], match["prefix"].strip("/"))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """URL, credentials and timeouts of a bucket."""

    url: StoreUrl
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # keys of object_store; may be secret
    connect_seconds: int = 5
    read_seconds: int = 30
    retries: int = 5
    retry_seconds: int = 60

    def __reduce__(self) -> Any:
        raise TypeError("store settings contain credentials and are never pickled")

    def build_client(self) -> Any:
        """Create a client of obstore. Sends no request.

        Raises:
            Invalid: an option is unknown or has an invalid value
            Unsupported: the extra `object-store` is not installed
        """
        with translate_missing_extra():
            from obstore import exceptions
            from obstore.store import AzureStore, GCSStore, S3Store
        client_class: Any = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[self.url.scheme]
        error_type = ""
        try:
            return client_class(
                self.url.bucket,
                prefix=self.url.prefix or None,
                config=self._service_options(),
                client_options=self._client_options(),
                retry_config={
                    "max_retries": self.retries,
                    "retry_timeout": timedelta(seconds=self.retry_seconds),
                    "backoff": {
                        "init_backoff": timedelta(milliseconds=100),
                        "max_backoff": timedelta(seconds=10),
                        "base": 2,
                    },
                },
            )
        except exceptions.UnknownConfigurationKeyError as error:
            key = re.search(r"Configuration key: '(\w{1,60})'", str(error))
            raise Invalid("bad_store_options.unknown", {"key": key[1] if key else "…"}) from None
        except (exceptions.BaseError, ValueError, TypeError) as error:
            error_type = type(error).__name__  # the message may contain the value of an option
        raise Invalid("bad_store_options.value", {"error": error_type})

    def spark_uri(self, path: str) -> str:
        """Return the URI with which Spark's workers open a file."""
        url = self.url
        key = f"{url.prefix}/{path}" if url.prefix else path
        if url.scheme == "az":
            account = self._option("account_name", "storage_account_name") or os.environ.get(
                "AZURE_STORAGE_ACCOUNT_NAME", ""
            )
            return f"abfss://{url.bucket}@{account}.dfs.core.windows.net/{key}"
        return f"{'s3a' if url.scheme == 's3' else url.scheme}://{url.bucket}/{key}"

    def spark_settings(self) -> dict[str, str]:
        """Return the settings of a Spark session that reads and writes the bucket. They contain credentials.

        Set them in a session, never in the builder: its settings are arguments of the Java process, which `ps` shows.
        """
        if self.url.scheme != "s3":
            return {}
        prefix = f"fs.s3a.bucket.{self.url.bucket}"
        settings = {}
        for name, value in self.options.items():
            if hadoop_name := _SPARK_NAMES.get(_plain(name)):
                settings[f"{prefix}.{hadoop_name}"] = value
        if endpoint := settings.get(f"{prefix}.endpoint"):
            settings[f"{prefix}.path.style.access"] = str(not self._uses_virtual_hosts()).lower()
            settings[f"{prefix}.connection.ssl.enabled"] = str(not endpoint.startswith("http://")).lower()
        if f"{prefix}.session.token" in settings:
            settings[f"{prefix}.aws.credentials.provider"] = _TEMPORARY_CREDENTIALS
        return settings

    def _service_options(self) -> dict[str, str]:
        return {name: value for name, value in self.options.items() if _plain(name) not in _CLIENT_OPTIONS}

    def _client_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "connect_timeout": timedelta(seconds=self.connect_seconds),
            "read_timeout": timedelta(seconds=self.read_seconds),
            "timeout": timedelta(seconds=_REQUEST_SECONDS),
        }
        endpoint = self._option(*_ENDPOINTS) or os.environ.get("AWS_ENDPOINT_URL", "")
        if endpoint.startswith("http://"):  # its owner has asked for a connection without TLS
            options["allow_http"] = True
        for name, value in self.options.items():
            if (plain := _plain(name)) in _CLIENT_OPTIONS:
                options[plain] = value.lower() == "true" if plain.startswith("allow_") else value
        return options

    def _uses_virtual_hosts(self) -> bool:
        return self._option("virtual_hosted_style_request").lower() == "true"

    def _option(self, *names: str) -> str:
        values = {_plain(name): value for name, value in self.options.items()}
        return next((values[name] for name in names if name in values), "")


def _plain(name: str) -> str:
    """Return the name of an option without the prefix of its service."""
    return re.sub(r"\A(aws|google|azure)_", "", name.lower())
