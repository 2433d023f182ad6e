# Tests an image that containers/install.sh made.
set -eu
/opt/shardlab/bin/python -c "import torch, deepspeed, safetensors, tokenizers"
g++ --version > /dev/null
# What NCCL loads, and a provider: the part of libibverbs that knows a kind of network card.
/opt/shardlab/bin/python -c 'import ctypes; ctypes.CDLL("libibverbs.so.1"); ctypes.CDLL("librdmacm.so.1")'
ls /usr/lib/*/libibverbs/libmlx5-rdmav*.so > /dev/null
