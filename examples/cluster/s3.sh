#!/bin/sh
# Start the S3 server with one bucket, `lake`. The secret is in a file, not in the command line.
set -eu
umask 077
: "${S3_FOLDER:=/s3}" "${S3_JARS:=/opt/jars}" "${S3_ADDRESS:=0.0.0.0:8000}"
mkdir -p "$S3_FOLDER/data/lake"
cat > "$S3_FOLDER/s3.conf" <<END
s3proxy.authorization=aws-v2-or-v4
s3proxy.endpoint=http://$S3_ADDRESS
s3proxy.identity=$S3_ACCESS_KEY
s3proxy.credential=$S3_SECRET_KEY
jclouds.provider=filesystem-nio2
jclouds.filesystem.basedir=$S3_FOLDER/data
END
exec java -Xmx512m -jar "$S3_JARS"/s3proxy-*-jar-with-dependencies.jar --properties "$S3_FOLDER/s3.conf"
