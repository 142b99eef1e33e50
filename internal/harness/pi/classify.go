package pi

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/alineod/alineod/internal/harness"
)

var (
	// leadingStatus is how Pi's providers begin an error: "429: {…}".
	leadingStatus = regexp.MustCompile(`^\D{0,40}?\b([1-5]\d\d)\b`)
	namedStatus   = regexp.MustCompile(`(?i)\bstatus(?:[ _]?code)?\W{0,4}([1-5]\d\d)\b`)
	// used up says that waiting a moment does not help. A mere rate limit, which
	// Pi retries by itself, is not among these.
	usedUp = regexp.MustCompile(`(?i)insufficient_quota|usage[ _]?limit|quota[ _]?(?:exceeded|exhausted|reached)|` +
		`exceeded your current quota|credit balance|out of (?:budget|credits)|billing`)
	badKey = regexp.MustCompile(`(?i)no api key|invalid[ _](?:x-)?api[ _-]?key|incorrect api key|authentication[ _]?(?:failed|error)|` +
		`not logged in|use /login|no models? (?:selected|available)`)
	// resetsAt is a reset told as a point in time, in seconds or milliseconds.
	resetsAt = regexp.MustCompile(`"resets?_?[aA]t"\s*:\s*(\d{10,13})\b`)
)

// classify reads a provider's error as Pi passes it on.
func classify(text string) string {
	code := status(text)
	switch {
	case code < 500 && usedUp.MatchString(text):
		return harness.ClassQuota
	case code == 401, code == 403:
		return harness.ClassMissingCredentials
	case code == 0 && badKey.MatchString(text):
		return harness.ClassMissingCredentials
	}
	return harness.ClassModelError
}

// status finds the HTTP status in an error's text; 0 where there is none.
func status(text string) int {
	for _, re := range []*regexp.Regexp{leadingStatus, namedStatus} {
		if m := re.FindStringSubmatch(text); m != nil {
			code, _ := strconv.Atoi(m[1]) // three digits
			return code
		}
	}
	return 0
}

// quotaOf is what an error of class quota says about the provider's limit. The
// reset is unknown (0) unless the error tells it as a point in time: a span
// would have to be counted from a moment this package does not know.
func quotaOf(provider, text string) harness.Quota {
	q := harness.Quota{Provider: provider, Status: "exhausted", Source: text}
	if len(q.Source) > maxSource {
		q.Source = strings.ToValidUTF8(q.Source[:maxSource], "")
	}
	if m := resetsAt.FindStringSubmatch(text); m != nil {
		at, _ := strconv.ParseInt(m[1], 10, 64) // at most 13 digits
		if len(m[1]) == 10 {
			at *= 1000
		}
		q.ResetsAt = at
	}
	return q
}

// maxSource bounds, in bytes, the text a quota observation keeps.
const maxSource = 2048
