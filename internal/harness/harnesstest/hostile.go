package harnesstest

import (
	"bytes"
	"strings"
)

// Hostile are lines that no harness should write and every Protocol survives,
// in any state, without taking one for the end of a turn.
func Hostile() [][]byte {
	lines := []string{
		"", " ", "\r", "null", "true", "0", "1e999", `""`, "[]", "{}", "{", `{"type":`, "not JSON at all",
		"\x00", "\xff\xfe\xfd", `{"type":"\ud800"}`,
		`{"type":1}`, `{"type":null}`, `{"type":["response"]}`, `{"ev":1}`, `{"ev":{}}`, `{"ev":"nothing of that name"}`,
		`{"type":"response"}`, `{"type":"response","id":5}`, `{"type":"response","id":"nobody","success":"yes"}`,
		`{"type":"response","id":"c1","success":true,"data":{"messageCount":1e400}}`,
		`{"type":"response","command":"parse","success":false,"error":"no"}`,
		`{"type":"message_end"}`, `{"type":"message_end","message":7}`, `{"type":"message_end","message":{"role":7}}`,
		`{"type":"message_update","assistantMessageEvent":"x"}`,
		`{"type":"tool_execution_start","toolCallId":{}}`, `{"type":"tool_execution_end","isError":"maybe"}`,
		`{"type":"agent_settled","aborted":"perhaps"}`, `{"type":"queue_update","steering":3}`,
		`{"type":"auto_retry_start","attempt":99999999999999999999999999}`,
		`{"type":"compaction_end","result":"none"}`, `{"type":"extension_error","error":[]}`,
		`{"type":"extension_ui_request","method":"confirm"}`, `{"type":"extension_ui_request","method":"select","id":"x","options":"y"}`,
		`{"ev":"ready"}`, `{"ev":"ready","session":"another"}`, `{"ev":"end","messages":"many"}`, `{"ev":"message","messages":1e999}`,
		`{"ev":"answered","id":"nobody"}`, `{"ev":"reply","id":"nobody"}`, `{"ev":"quota","resetsAt":1e30}`,
	}
	all := make([][]byte, 0, len(lines)+4)
	for _, l := range lines {
		all = append(all, []byte(l))
	}
	deep := strings.Repeat(`{"type":`, 20_000)
	return append(all,
		[]byte(deep), []byte(strings.Repeat("[", 100_000)),
		[]byte(`{"type":"message_end","message":{"role":"user","content":`+strings.Repeat("[", 9_000)+strings.Repeat("]", 9_000)+`}}`),
		bytes.Repeat([]byte("x"), 1<<20),
	)
}
