package pi

import (
	"encoding/json"
	"strings"
)

// command is one line to Pi.
type command struct {
	ID      string  `json:"id,omitempty"`
	Type    string  `json:"type"`
	Message *string `json:"message,omitempty"`
	Images  []image `json:"images,omitempty"`
	// StreamingBehavior lets a prompt be queued where an extension has begun a
	// run of its own; without it Pi would refuse the prompt.
	StreamingBehavior string `json:"streamingBehavior,omitempty"`
}

type image struct {
	Type     string `json:"type"`
	Data     []byte `json:"data"` // base64 in JSON
	MIMEType string `json:"mimeType"`
}

// dialogAnswer is the line that closes a dialog of an extension.
type dialogAnswer struct {
	Type      string  `json:"type"`
	ID        string  `json:"id"`
	Value     *string `json:"value,omitempty"`
	Confirmed *bool   `json:"confirmed,omitempty"`
	Cancelled bool    `json:"cancelled,omitempty"`
}

// line marshals a command or an answer; both always can be.
func line(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// response answers a command.
type response struct {
	ID      string          `json:"id"`
	Command string          `json:"command"`
	Success bool            `json:"success"`
	Error   string          `json:"error"`
	Data    json.RawMessage `json:"data"`
}

// sessionState is the data of get_state, as far as it is read.
type sessionState struct {
	SessionID    string `json:"sessionId"`
	MessageCount int    `json:"messageCount"`
	IsStreaming  bool   `json:"isStreaming"`
	Pending      int    `json:"pendingMessageCount"`
}

// message is a message of the conversation, as far as it is read.
type message struct {
	Role         string          `json:"role"`
	Content      json.RawMessage `json:"content"`
	StopReason   string          `json:"stopReason"`
	ErrorMessage string          `json:"errorMessage"`
	Provider     string          `json:"provider"`
}

// text joins the text blocks of a message's content, which is a string or a
// list of blocks. Content of another shape has no text.
func text(content json.RawMessage) string {
	var s string
	if json.Unmarshal(content, &s) == nil {
		return s
	}
	var blocks []json.RawMessage
	if json.Unmarshal(content, &blocks) != nil {
		return ""
	}
	var parts []string
	for _, raw := range blocks {
		var b struct {
			Type string `json:"type"`
			Text string `json:"text"`
		}
		if json.Unmarshal(raw, &b) == nil && b.Type == "text" {
			parts = append(parts, b.Text)
		}
	}
	return strings.Join(parts, "\n")
}

// toolText is the text of a tool's result: {"content": […]}.
func toolText(result json.RawMessage) string {
	var r struct {
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal(result, &r) != nil {
		return text(result)
	}
	return text(r.Content)
}
