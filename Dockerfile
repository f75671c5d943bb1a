# One image for both commands, `bridge` and `lake-consumer`: docker build -t walbridge .
FROM python:3.13-slim AS build
# Compiles the bridge's loops; the image itself has no compiler.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY schemas schemas
COPY bridge bridge
COPY lake_consumer lake_consumer
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim
COPY constraints.txt /tmp/constraints.txt
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt "$(echo /wheels/walbridge-*.whl)[lake]" \
    && rm -r /wheels /tmp/constraints.txt

# The lake is the only place the programs write to.
RUN useradd --create-home --uid 10001 walbridge && install --directory --owner walbridge /lake
USER walbridge
WORKDIR /home/walbridge
# Start Spark once, so that its jars are in the image and no container has to download them.
RUN python -c "\
from lake_consumer.catalogs import CatalogUri; \
from lake_consumer.session import SessionOptions, open_session; \
open_session(SessionOptions(master='local[1]', warehouse='file:///tmp/w', \
    catalog=CatalogUri('sqlite:////tmp/catalog.db'))).stop()"
ENV PYTHONUNBUFFERED=1 LAKE_WAREHOUSE=/lake
VOLUME /lake
EXPOSE 9090
CMD ["bridge", "--help"]
