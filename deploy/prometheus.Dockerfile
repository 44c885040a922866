# Prometheus from Debian's package, with the command line of Docker Hub's prom/prometheus, for machines that reach no
# registry. It runs as 65534, Debian's user without rights.
#
#   docker build -f deploy/prometheus.Dockerfile -t causeway-prometheus deploy/prometheus
#   PROMETHEUS_IMAGE=causeway-prometheus docker compose -f deploy/compose.yaml --profile dashboards up -d
ARG BASE=debian:12-slim
FROM ${BASE}
RUN apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends prometheus \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
    && install -d -o 65534 -g 65534 /prometheus
USER 65534:65534
EXPOSE 9090
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD ["promtool", "check", "healthy", "--url=http://127.0.0.1:9090"]
ENTRYPOINT ["/usr/bin/prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
