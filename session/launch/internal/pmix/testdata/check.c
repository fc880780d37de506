// SPDX-License-Identifier: BSD-2-Clause
/* Compiles where abi.h is what PMIx's own headers say. */
#include <pmix.h>

#include "../abi.h"

#define SAME(ours, theirs) _Static_assert((ours) == (theirs), #ours " is not " #theirs)
#define SAME_SIZE(ours, theirs) SAME(sizeof(ours), sizeof(theirs))
#define SAME_OFFSET(ours, a, theirs, b) SAME(offsetof(ours, a), offsetof(theirs, b))

SAME_SIZE(struct bw_pmix_proc, pmix_proc_t);
SAME_SIZE(struct bw_pmix_value, pmix_value_t);
SAME_SIZE(struct bw_pmix_info, pmix_info_t);
SAME_SIZE(uint8_t, pmix_scope_t);
SAME_SIZE(int, pmix_status_t);
SAME_SIZE(uint16_t, pmix_data_type_t);
SAME_OFFSET(struct bw_pmix_proc, rank, pmix_proc_t, rank);
SAME_OFFSET(struct bw_pmix_value, data.bo.bytes, pmix_value_t, data.bo.bytes);
SAME_OFFSET(struct bw_pmix_value, data.bo.size, pmix_value_t, data.bo.size);
SAME_OFFSET(struct bw_pmix_value, data.u32, pmix_value_t, data.uint32);
SAME_OFFSET(struct bw_pmix_info, flags, pmix_info_t, flags);
SAME_OFFSET(struct bw_pmix_info, value, pmix_info_t, value);
SAME(BW_PMIX_RANK_WILDCARD, (PMIX_RANK_WILDCARD));
SAME(BW_PMIX_GLOBAL, PMIX_GLOBAL);
SAME(BW_PMIX_INT, PMIX_INT);
SAME(BW_PMIX_UINT32, PMIX_UINT32);
SAME(BW_PMIX_BYTE_OBJECT, PMIX_BYTE_OBJECT);
SAME(sizeof(BW_PMIX_JOB_SIZE), sizeof(PMIX_JOB_SIZE));
SAME(sizeof(BW_PMIX_LOCAL_SIZE), sizeof(PMIX_LOCAL_SIZE));
SAME(sizeof(BW_PMIX_TIMEOUT), sizeof(PMIX_TIMEOUT));
SAME(BW_PMIX_LOST_CONNECTION, PMIX_ERR_LOST_CONNECTION);
SAME(BW_PMIX_EVENT_DONE, PMIX_EVENT_ACTION_COMPLETE);

/* The same declarations, or a compiler's error. */
pmix_status_t (*check_init)(pmix_proc_t *, pmix_info_t[], size_t) = PMIx_Init;
pmix_status_t (*check_finalize)(const pmix_info_t[], size_t) = PMIx_Finalize;
pmix_status_t (*check_abort)(int, const char[], pmix_proc_t[], size_t) = PMIx_Abort;
pmix_status_t (*check_put)(pmix_scope_t, const char[], pmix_value_t *) = PMIx_Put;
pmix_status_t (*check_commit)(void) = PMIx_Commit;
pmix_status_t (*check_fence)(const pmix_proc_t[], size_t, const pmix_info_t[], size_t) = PMIx_Fence;
pmix_status_t (*check_get)(const pmix_proc_t *, const char[], const pmix_info_t[], size_t, pmix_value_t **) = PMIx_Get;
const char *(*check_error)(pmix_status_t) = PMIx_Error_string;
pmix_status_t (*check_register)(pmix_status_t[], size_t, pmix_info_t[], size_t, pmix_notification_fn_t,
				pmix_hdlr_reg_cbfunc_t, void *) = PMIx_Register_event_handler;

/* The arguments, one by one, as our structures are other types. */
void check_handler(size_t id, pmix_status_t status, const pmix_proc_t *source, pmix_info_t info[], size_t n,
		   pmix_info_t *results, size_t nresults, pmix_event_notification_cbfunc_fn_t done, void *data);
pmix_notification_fn_t check_notification = check_handler;
void check_done(pmix_status_t status, pmix_info_t *results, size_t n, pmix_op_cbfunc_t op, void *op_data, void *data);
pmix_event_notification_cbfunc_fn_t check_event_done = check_done;
void check_registered(pmix_status_t status, size_t id, void *data);
pmix_hdlr_reg_cbfunc_t check_reg = check_registered;
