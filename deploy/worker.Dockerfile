# One site's worker, on CPUs.
#
#   docker build -f deploy/worker.Dockerfile -t causeway-worker .
#   docker build -f deploy/worker.Dockerfile -t causeway-corpus --target corpus .     the text of the demo
#
# The build stage is the same, line by line, in coordinator.Dockerfile, so that a machine that builds both compiles once.
ARG BASE=debian:12-slim

FROM ${BASE} AS build
COPY deploy/install_packages deploy/packages.txt /source/deploy/
RUN apt-get update -q && /source/deploy/install_packages && rm -rf /var/lib/apt/lists/*
COPY . /source
# How many compilers run at once; each takes up to a gigabyte of memory. Empty: one for each core.
ARG JOBS=""
RUN --mount=type=cache,id=causeway-ccache,target=/ccache \
    export CCACHE_DIR=/ccache \
    && cmake -S /source -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release \
         -DFOLDERS="proto;core;formats;codecs;offload;plan;replica;transport;server;worker;ctl" \
    && nice ninja -C /build ${JOBS:+-j${JOBS}} causeway-coordinator causeway-worker causewayctl \
    && mkdir /programs && cp /build/causeway-coordinator /build/causeway-worker /build/causewayctl /programs/ \
    && strip /programs/* && rm -rf /build
RUN cd /programs && /source/deploy/runtime_packages causeway-coordinator causewayctl >/coordinator_packages \
    && /source/deploy/runtime_packages causeway-worker >/worker_packages

# The demo's text, 40 MB: the English dictionary of Debian's dict-gcide, which deploy/quickstart trains on, too.
FROM ${BASE} AS corpus
RUN mkdir /tmp/package && cd /tmp/package && apt-get update -q \
    && apt-get download -q -oAPT::Sandbox::User=root dict-gcide && dpkg-deb -x dict-gcide_*.deb . \
    && mkdir /corpus && { zcat <usr/share/dictd/gcide.dict.dz | iconv -c -f UTF-8 -t UTF-8 >/corpus/gcide.txt; \
        test -s /corpus/gcide.txt; } \
    && rm -rf /tmp/package /var/lib/apt/lists/* /var/cache/apt/* \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin causeway \
    && install -d -o causeway -g causeway -m 750 /data
USER 10001:10001
# Onto the volume at /data, once: under another name until it is whole.
CMD ["sh", "-c", "test -s /data/corpus.txt || { cp /corpus/gcide.txt /data/partial && mv /data/partial /data/corpus.txt; }"]

FROM ${BASE}
COPY --from=build /worker_packages /usr/share/causeway/packages
RUN apt-get update -q \
    && DEBIAN_FRONTEND=noninteractive xargs -a /usr/share/causeway/packages \
         apt-get install -y -q --no-install-recommends \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/* /var/log/apt /var/log/dpkg.log \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin causeway \
    && install -d -o causeway -g causeway -m 750 /data /var/lib/causeway /etc/causeway /etc/causeway/certs
COPY --from=build /programs/causeway-worker /usr/local/bin/
COPY deploy/health/causeway-worker-health /usr/local/bin/
USER 10001:10001
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
    CMD ["causeway-worker-health", "/var/lib/causeway"]
ENV XDG_CACHE_HOME=/var/lib/causeway/cache
# --coordinator, --site and the certificates come with the container's command; checkpoints are on a volume at
# /var/lib/causeway.
ENTRYPOINT ["causeway-worker"]
CMD ["--help"]
