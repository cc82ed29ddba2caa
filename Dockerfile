# mqcast on CPUs, as an unprivileged user. Build it in a clone:  docker build -t mqcast .
# pip takes the index that it is configured with; where that is not the public one, set PIP_INDEX_URL, PIP_FIND_LINKS or
# mount a pip.conf at build time. The pins of constraints.txt have the hashes of all files.
FROM python:3.11-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN python -m venv /opt/mqcast
# The build of torch without CUDA is a tenth of the size; where pip does not find it, the index's own is installed.
RUN /opt/mqcast/bin/pip install --no-cache-dir --require-hashes --no-deps -r constraints-cpu.txt || true
RUN /opt/mqcast/bin/pip install --no-cache-dir --require-hashes --no-deps -r constraints.txt \
 && if /opt/mqcast/bin/python -c 'import sys, importlib.metadata as m; sys.exit("nvidia" in str(m.requires("torch")))'; \
    then true; else /opt/mqcast/bin/pip install --no-cache-dir --require-hashes --no-deps -r constraints-cuda.txt; fi
RUN /opt/mqcast/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.11-slim
RUN useradd --create-home --uid 10001 mqcast && mkdir /data && chown mqcast /data
COPY --from=build /opt/mqcast /opt/mqcast
ENV PATH=/opt/mqcast/bin:$PATH OMP_NUM_THREADS=1
USER mqcast
WORKDIR /data
VOLUME /data
ENTRYPOINT ["mqcast"]
CMD ["--help"]
