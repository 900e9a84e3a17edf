# The package with torch for the CPU. Build it in a clone:
#     docker build --tag beir-cocodr .
#     docker run --rm --volume "$PWD:/work" --user "$(id -u)" beir-cocodr validate --dataset my-folder/
FROM python:3.12-slim-bookworm

WORKDIR /opt/beir-cocodr
# The versions change less often than the code, so that most builds find this layer done.
COPY constraints.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt uv \
    && uv pip install --system --no-cache --torch-backend cpu --constraints constraints.txt torch
COPY pyproject.toml README.md LICENSE ./
COPY beir_cocodr beir_cocodr
COPY plugins plugins
COPY benchmarks/published benchmarks/published
RUN pip install --no-cache-dir --constraint constraints.txt \
    ".[quickstart,faiss-cpu,files,serve,report]"

# Any user may run the image: `docker run --user` makes results belong to the person who runs it.
ENV BEIR_COCODR_CACHE=/cache HF_HOME=/cache/huggingface
RUN install --directory --mode 1777 /cache
USER 65534
WORKDIR /work
ENTRYPOINT ["beir-cocodr"]
CMD ["--help"]
