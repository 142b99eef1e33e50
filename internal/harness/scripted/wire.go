package scripted

import "encoding/json"

// order is one line to the process.
type order struct {
	Op       string `json:"op"` // prompt, steer, follow-up, abort, answer
	ID       string `json:"id,omitempty"`
	Text     string `json:"text,omitempty"`
	Images   int    `json:"images,omitempty"`
	Request  string `json:"request,omitempty"`
	Decision string `json:"decision,omitempty"`
	Feedback string `json:"feedback,omitempty"`
}

const (
	opPrompt   = "prompt"
	opSteer    = "steer"
	opFollowUp = "follow-up"
	opAbort    = "abort"
	opAnswer   = "answer"
)

// report is one line from the process. Ev says which of the fields count.
type report struct {
	Ev        string          `json:"ev"`
	ID        string          `json:"id,omitempty"`   // of a tool call, a request, an order
	Name      string          `json:"name,omitempty"` // of a tool; role of a message; kind of a delta
	Text      string          `json:"text,omitempty"`
	Args      json.RawMessage `json:"args,omitempty"`
	IsError   bool            `json:"isError,omitempty"`
	Session   string          `json:"session,omitempty"`
	Messages  int             `json:"messages,omitempty"`
	Continued bool            `json:"continued,omitempty"`
	Steering  int             `json:"steering,omitempty"`
	FollowUp  int             `json:"followUp,omitempty"`
	Outcome   string          `json:"outcome,omitempty"`
	Class     string          `json:"class,omitempty"`
	Error     string          `json:"error,omitempty"`
	Decision  string          `json:"decision,omitempty"`
	Feedback  string          `json:"feedback,omitempty"`
	Provider  string          `json:"provider,omitempty"`
	ResetsAt  int64           `json:"resetsAt,omitempty"` // Unix milliseconds
}

const (
	evReady    = "ready"
	evDelta    = "delta"
	evMessage  = "message"
	evTool     = "tool"
	evToolOut  = "tool-output"
	evToolEnd  = "tool-end"
	evAsk      = "ask"
	evAnswered = "answered"
	evQueue    = "queue"
	evQuota    = "quota"
	evReply    = "reply"
	evEnd      = "end"
)
