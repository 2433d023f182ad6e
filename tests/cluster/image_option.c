/* An option of srun for an image, as Pyxis and CSCS's Container Engine have it; sbatch and salloc do not know it.
 *
 * No image is started. What such plugins do to a step is done here without one: it starts in another folder, and with
 * the image's values of variables instead of the job's.
 */
#include <slurm/spank.h>
#include <string.h>
#include <unistd.h>

SPANK_PLUGIN(shardlab_image_option, 1)

static char *image;

static int set_image(int value, const char *word, int remote)
{
    image = strdup(word);
    return image ? 0 : -1;
}

static struct spank_option option = {
    "container-image", "IMAGE", "image to run in (only noted in SHARDLAB_TEST_IMAGE)", 1, 0, set_image
};

int slurm_spank_init(spank_t sp, int count, char **words)
{
    /* local: srun; remote: the node's slurmstepd, which gets the option from srun. */
    if (spank_context() == S_CTX_LOCAL || spank_context() == S_CTX_REMOTE)
        return spank_option_register(sp, &option);
    return 0;
}

int slurm_spank_task_init(spank_t sp, int count, char **words)
{
    if (image == NULL)
        return 0;
    if (spank_setenv(sp, "SHARDLAB_TEST_IMAGE", image, 1) || spank_setenv(sp, "OMP_NUM_THREADS", "99", 1))
        return -1;
    return chdir("/");
}
