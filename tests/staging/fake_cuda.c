/* The functions of NVIDIA's driver by which memory is exported, for allocations that a test tells of. */
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

enum { INVALID_VALUE = 1, NOT_SUPPORTED = 801, MOST = 16 };

static struct allocation {
	uint64_t base, length, identity;
	int fd;
} known[MOST];
static int count;
int fake_flushes, fake_exports;

void fake_allocation(uint64_t base, uint64_t length, int fd)
{
	known[count] = (struct allocation){base, length, 100 + count, fd};
	count++;
}

static const struct allocation *find(uint64_t address)
{
	for (int i = 0; i < count; i++)
		if (address >= known[i].base && address - known[i].base < known[i].length)
			return &known[i];
	return NULL;
}

int cuMemGetAddressRange_v2(uint64_t *base, size_t *length, uint64_t address)
{
	const struct allocation *found = find(address);

	if (!found)
		return INVALID_VALUE;
	*base = found->base;
	*length = found->length;
	return 0;
}

int cuPointerGetAttribute(void *value, int attribute, uint64_t address)
{
	if (attribute != 7 || !find(address))
		return INVALID_VALUE;
	*(uint64_t *)value = find(address)->identity;
	return 0;
}

int cuMemGetHandleForAddressRange(void *handle, uint64_t address, size_t length, int type, unsigned long long flags)
{
	const struct allocation *found = find(address);

	if (!found || address != found->base || length != found->length || type != 1 || flags)
		return INVALID_VALUE;
	fake_exports++;
	*(int *)handle = dup(found->fd);
	return 0;
}

int cuFlushGPUDirectRDMAWrites(int target, int scope)
{
	fake_flushes += target == 0 && scope == 100;
	return NOT_SUPPORTED;
}
