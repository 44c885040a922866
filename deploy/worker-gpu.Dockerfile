# One site's worker on NVIDIA GPUs: worker.Dockerfile's, built with CUDA, and beside it the libraries that it loads.
#
#   docker build -f deploy/worker-gpu.Dockerfile -t causeway-worker-gpu .
#
# The host has the driver (580 or newer) and the NVIDIA Container Toolkit. cuda_wheels.txt has the versions; the image
# takes 2 GB.
ARG BASE=debian:12-slim

FROM ${BASE} AS build
COPY deploy/install_packages deploy/packages.txt deploy/cuda_wheels.txt /source/deploy/
RUN apt-get update -q && /source/deploy/install_packages && apt-get install -y -q --no-install-recommends python3-pip \
    && rm -rf /var/lib/apt/lists/*
# One folder, laid out as a toolkit.
RUN pip3 install -q --no-cache-dir --no-deps --target=/wheels -r /source/deploy/cuda_wheels.txt \
    && mv /wheels/nvidia/cu13 /cuda && cp -al /wheels/nvidia/cudnn/. /wheels/nvidia/nccl/. /cuda/ \
    && ln -s lib /cuda/lib64 && ln -s libcudart.so.13 /cuda/lib/libcudart.so \
    && mkdir /libraries && cd /cuda/lib \
    && cp -al libcublasLt.so.13 libcudart.so.13 libcudnn*.so.9 libnccl.so.2 libnvrtc*.so.13* /libraries/
COPY . /source
# How many compilers run at once; each takes up to a gigabyte of memory. Empty: one for each core.
ARG JOBS=""
RUN --mount=type=cache,id=causeway-ccache,target=/ccache \
    export CCACHE_DIR=/ccache \
    && cmake -S /source -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCAUSEWAY_CUDA=ON -DCUDNN_FRONTEND=/wheels \
         -DCMAKE_CUDA_COMPILER=/cuda/bin/nvcc -DCUDAToolkit_ROOT=/cuda \
         -DFOLDERS="proto;core;formats;codecs;offload;plan;replica;transport;server;worker;ctl" \
    && nice ninja -C /build ${JOBS:+-j${JOBS}} causeway-worker \
    && mkdir /programs && cp /build/causeway-worker /programs/ && strip /programs/* && rm -rf /build
RUN cd /programs && /source/deploy/runtime_packages causeway-worker >/worker_packages

FROM ${BASE}
COPY --from=build /worker_packages /usr/share/causeway/packages
RUN apt-get update -q \
    && DEBIAN_FRONTEND=noninteractive xargs -a /usr/share/causeway/packages \
         apt-get install -y -q --no-install-recommends \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/* /var/log/apt /var/log/dpkg.log \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin causeway \
    && install -d -o causeway -g causeway -m 750 /data /var/lib/causeway /etc/causeway /etc/causeway/certs
COPY --from=build /libraries /usr/local/lib/causeway/cuda
COPY --from=build /programs/causeway-worker /usr/local/bin/
COPY deploy/health/causeway-worker-health /usr/local/bin/
USER 10001:10001
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
    CMD ["causeway-worker-health", "/var/lib/causeway"]
ENV XDG_CACHE_HOME=/var/lib/causeway/cache LD_LIBRARY_PATH=/usr/local/lib/causeway/cuda \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
# --coordinator, --site and the certificates come with the container's command; checkpoints are on a volume at
# /var/lib/causeway.
ENTRYPOINT ["causeway-worker", "--device=cuda"]
CMD ["--help"]
