# Installs what training needs into an image, from wheels alone: what the login node collected is what the nodes run;
# then tests it.
# containers/train.def (Apptainer) and containers/Containerfile (OCI) run it as root, with the wheels in /wheelhouse.
#
# BASE: docker, debootstrap or rocm, as container.base
# IMAGE: name of the image that this one starts from
# PYTHON: release of the Python that the wheels are for
# OLDEST_TORCH: oldest release of PyTorch that base rocm may have; the newest is the pinned one
set -eu
export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive
fail() { echo "error: $1." >&2; exit 1; }

if [ "$BASE" = rocm ]; then
    has=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])') || has=none
    [ "$has" = "$PYTHON" ] || fail "the Python of $IMAGE is $has, but the wheels are those of $PYTHON; set container.rocm_image to an image with Python $PYTHON, or run Snakemake with the image's"
    has=$(python3 -c 'import torch; print(torch.__version__ if torch.version.hip else "not for ROCm")') || has=none
    release=$(echo "$has" | sed 's/^\([0-9]*\.[0-9]*\).*/\1/')
    newest=$(sed -n 's/^torch==\([0-9]*\.[0-9]*\).*/\1/p' /wheelhouse.txt)
    [ "$(printf '%s\n' "$OLDEST_TORCH" "$release" "$newest" | sort -V | sed -n 2p)" = "$release" ] ||
        fail "the PyTorch of $IMAGE is $has, but this project needs $OLDEST_TORCH to $newest; set container.rocm_image to an image with such a PyTorch for ROCm"
fi

# DeepSpeed compiles some of its optimizers when they are first used (ninja is in the lock file). NCCL loads the
# other packages to send between nodes over InfiniBand or RoCE: --nv binds only NVIDIA's libraries into the image.
if [ "$BASE" != debootstrap ]; then
    apt-get update
    apt-get install --yes --no-install-recommends g++ libibverbs1 ibverbs-providers librdmacm1
fi

pip="/opt/shardlab/bin/pip install --quiet --no-index --no-cache-dir --disable-pip-version-check"
if [ "$BASE" = rocm ]; then
    # All wheels but PyTorch's are there, which dependencies would ask for. What the image has in these versions is
    # installed all the same: another version of it may come first on the image's path.
    python3 -m venv --system-site-packages /opt/shardlab
    $pip --no-deps --ignore-installed /wheelhouse/*.whl
    # The image's Python can be in a virtual environment itself, and --system-site-packages shows what is below that.
    python3 -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])' \
        > "$(/opt/shardlab/bin/python -c 'import site; print(site.getsitepackages()[0])')/base.pth"
else
    python3 -m venv /opt/shardlab
    $pip --find-links /wheelhouse -r /wheelhouse.txt
fi
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb

/opt/shardlab/bin/python -c "import torch, deepspeed, safetensors, tokenizers"
g++ --version > /dev/null
# What NCCL loads, and a provider: the part of libibverbs that knows a kind of network card.
/opt/shardlab/bin/python -c 'import ctypes; ctypes.CDLL("libibverbs.so.1"); ctypes.CDLL("librdmacm.so.1")'
ls /usr/lib/*/libibverbs/libmlx5-rdmav*.so > /dev/null
