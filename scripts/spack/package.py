# A recipe for Spack 1.0 and later, to copy to packages/ctitan/package.py of a repository of yours. For EasyBuild and hand-made modules
# the same holds: build system Meson, the dependencies below, and a module that sets PATH, LD_LIBRARY_PATH, MANPATH and PKG_CONFIG_PATH.
# CTITAN_PLUGIN_PATH is for plugins of users alone.
from spack_repo.builtin.build_systems.meson import MesonPackage

from spack.package import *


class Ctitan(MesonPackage):
    """Training of large language models without Python: every technique is a plugin that a recipe lists."""

    git = "https://example.org/ctitan.git"  # yours
    license("Apache-2.0")
    version("0.3.0", tag="v0.3.0")

    variant("cuda", default=False, description="Kernels for NVIDIA GPUs (without them ctitan still plans for GPUs)")
    variant("nccl", default=False, description="Install NCCL, for ranks on GPUs, too")
    variant("mpi", default=True, description="Ranks by Open MPI")
    variant("tar", default=True, description="Data in tar files")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("libinih")
    depends_on("jansson")
    depends_on("libunistring")
    depends_on("onednn@2.6:2 cpu_runtime=omp")
    depends_on("pcre2+jit")
    depends_on("sentencepiece")
    depends_on("xxhash")
    depends_on("zlib-api")
    depends_on("zstd")
    depends_on("libarchive", when="+tar")
    depends_on("openmpi@4.1:", when="+mpi")
    depends_on("cuda@12.8:", when="+cuda")
    depends_on("nccl@2.22:", type="run", when="+nccl")  # with the GPUs' capability: spack install ctitan+nccl ^nccl cuda_arch=90

    def meson_args(self):
        features = ["cuda", "mpi", "tar"]
        return ["-Dtests=disabled", "-Dnccl=enabled"] + ["-D%s=%s" % (f, "enabled" if "+" + f in self.spec else "disabled") for f in features]
