//go:build linux

package hostile

import "encoding/json"

func strangerProgram(*json.Decoder, *json.Encoder) error  { return nil }
func tenantProgram(*json.Decoder, *json.Encoder) error    { return nil }
func neighbourProgram(*json.Decoder, *json.Encoder) error { return nil }
func listenerProgram(*json.Decoder, *json.Encoder) error  { return nil }
