"""A minimal S3 client for tests: requests signed with Signature Version 4, by the standard library only."""

import hashlib
import hmac
import http.client
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from html import unescape

REGION = "us-east-1"


class S3Error(Exception):
    def __init__(self, status: int, body: bytes) -> None:
        code = re.search(rb"<Code>(.*?)</Code>", body)
        self.status, self.code = status, code[1].decode() if code else ""
        super().__init__(f"{status} {self.code}")


class S3Client:
    """One connection for each request: usable by several threads, and after a fork."""

    def __init__(self, endpoint: str, access_key: str, secret_key: str) -> None:
        self._address = urllib.parse.urlsplit(endpoint).netloc
        self._access_key, self._secret_key = access_key, secret_key

    def create_bucket(self, bucket: str) -> None:
        self.request("PUT", f"/{bucket}")

    def put(self, bucket: str, key: str, body: bytes) -> None:
        self.request("PUT", f"/{bucket}/{key}", body=body)

    def get(self, bucket: str, key: str) -> bytes:
        return self.request("GET", f"/{bucket}/{key}")

    def delete(self, bucket: str, key: str) -> None:
        self.request("DELETE", f"/{bucket}/{key}")

    def objects(self, bucket: str, prefix: str = "") -> dict[str, int]:
        """Return the size of each object by its key."""
        sizes = {}
        for page in self._pages(bucket, {"list-type": "2", "prefix": prefix}, "continuation-token"):
            for entry in re.findall(r"<Contents>(.*?)</Contents>", page, re.DOTALL):
                sizes[_element(entry, "Key")] = int(_element(entry, "Size"))
        return sizes

    def uploads(self, bucket: str) -> list[str]:
        """Return the keys of the incomplete multipart uploads."""
        page = self.request("GET", f"/{bucket}", {"uploads": ""}).decode()
        return [_element(entry, "Key") for entry in re.findall(r"<Upload>(.*?)</Upload>", page, re.DOTALL)]

    def request(self, method: str, path: str, query: Mapping[str, str] | None = None, body: bytes = b"") -> bytes:
        """Send a signed request and return the body of its response.

        Raises:
            S3Error: the response has a status of 300 or above
        """
        path = urllib.parse.quote(path, safe="/~")
        target = "&".join(f"{_quote(name)}={_quote(value)}" for name, value in sorted((query or {}).items()))
        connection = http.client.HTTPConnection(self._address, timeout=60)
        try:
            connection.request(
                method, f"{path}?{target}" if target else path, body, self._sign(method, path, target, body)
            )
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        if response.status >= 300:
            raise S3Error(response.status, content)
        return content

    def _pages(self, bucket: str, query: dict[str, str], token: str) -> Iterator[str]:
        while True:
            page = self.request("GET", f"/{bucket}", query).decode()
            yield page
            if "<IsTruncated>true</IsTruncated>" not in page:
                return
            query = {**query, token: _element(page, "NextContinuationToken")}

    def _sign(self, method: str, path: str, target: str, body: bytes) -> dict[str, str]:
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        day, digest = now[:8], hashlib.sha256(body).hexdigest()
        headers = {"host": self._address, "x-amz-content-sha256": digest, "x-amz-date": now}
        names = ";".join(headers)
        lines = (method, path, target, *(f"{name}:{value}" for name, value in headers.items()), "", names, digest)
        scope = f"{day}/{REGION}/s3/aws4_request"
        to_sign = "\n".join(("AWS4-HMAC-SHA256", now, scope, hashlib.sha256("\n".join(lines).encode()).hexdigest()))
        key = f"AWS4{self._secret_key}".encode()
        for part in (day, REGION, "s3", "aws4_request", to_sign):
            key = hmac.digest(key, part.encode(), "sha256")
        credential = f"AWS4-HMAC-SHA256 Credential={self._access_key}/{scope}"
        return {**headers, "authorization": f"{credential}, SignedHeaders={names}, Signature={key.hex()}"}


def _quote(text: str) -> str:
    return urllib.parse.quote(text, safe="~")


def _element(xml: str, name: str) -> str:
    match = re.search(rf"<{name}>(.*?)</{name}>", xml, re.DOTALL)
    assert match, f"no element {name} in {xml[:200]}"
    return unescape(match[1])
