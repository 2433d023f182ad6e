# Installs what training needs into an image, from wheels alone: what the login node collected is what the nodes run;
# then tests it.
# containers/train.def (Apptainer) and containers/Containerfile (OCI) run it as root, with the wheels in /wheelhouse.
#
# BASE: docker or debootstrap, as container.base
set -eu
export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive

# DeepSpeed compiles some of its optimizers when they are first used (ninja is in the lock file). NCCL loads the
# other packages to send between nodes over InfiniBand or RoCE: --nv binds only NVIDIA's libraries into the image.
if [ "$BASE" != debootstrap ]; then
    apt-get update
    apt-get install --yes --no-install-recommends g++ libibverbs1 ibverbs-providers librdmacm1
fi

python3 -m venv /opt/shardlab
/opt/shardlab/bin/pip install --quiet --no-index --no-cache-dir --disable-pip-version-check \
    --find-links /wheelhouse -r /wheelhouse.txt
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb

/opt/shardlab/bin/python -c "import torch, deepspeed, safetensors, tokenizers"
g++ --version > /dev/null
# What NCCL loads, and a provider: the part of libibverbs that knows a kind of network card.
/opt/shardlab/bin/python -c 'import ctypes; ctypes.CDLL("libibverbs.so.1"); ctypes.CDLL("librdmacm.so.1")'
ls /usr/lib/*/libibverbs/libmlx5-rdmav*.so > /dev/null
