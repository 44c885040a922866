# The coordinator, with causewayctl and deploy/certs (as causeway-certs).
#
#   docker build -f deploy/coordinator.Dockerfile -t causeway-coordinator .
#
# The build stage is the same, line by line, in worker.Dockerfile, so that a machine that builds both compiles once.
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

FROM ${BASE}
# More of Debian's packages, for --copy_hook: rclone, awscli, restic.
ARG EXTRA_PACKAGES=""
COPY --from=build /coordinator_packages /usr/share/causeway/packages
RUN apt-get update -q \
    && DEBIAN_FRONTEND=noninteractive xargs -a /usr/share/causeway/packages \
         apt-get install -y -q --no-install-recommends openssl ${EXTRA_PACKAGES} \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/* /var/log/apt /var/log/dpkg.log \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin causeway \
    && install -d -o causeway -g causeway -m 750 /var/lib/causeway /etc/causeway /etc/causeway/certs \
         /certs /certs/all /certs/coordinator /certs/operator /certs/sites
COPY --from=build /programs/causeway-coordinator /programs/causewayctl /usr/local/bin/
COPY deploy/certs /usr/local/bin/causeway-certs
COPY deploy/health/causeway-healthz /usr/local/bin/
USER 10001:10001
EXPOSE 7077 7078
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 CMD ["causeway-healthz", "7078"]
ENTRYPOINT ["causeway-coordinator"]
# State on a volume at /var/lib/causeway; the run's config and the certificates under /etc/causeway.
CMD ["--config=/etc/causeway/run.yaml", "--state_dir=/var/lib/causeway", "--listen=0.0.0.0:7077", \
     "--http=0.0.0.0:7078", "--insecure_http=true", "--tls_ca=/etc/causeway/certs/ca.pem", "--tls_cert=/etc/causeway/certs/coordinator.pem", \
     "--tls_key=/etc/causeway/certs/coordinator.key", "--tls_revoked=/etc/causeway/certs/revoked", \
     "--site_tokens=/etc/causeway/certs/site_tokens"]
