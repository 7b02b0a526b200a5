-- An account that has not been seen opens with 1000.
INSERT INTO balances (account, balance) VALUES ($sender, 1000) ON CONFLICT DO NOTHING;

-- Debit it if it can pay; the decision is made from the balance before, so it comes first.
SELECT
  $id,
  $sender,
  $recipient,
  $amount,
  CASE WHEN balance >= $amount THEN 'approve' ELSE 'deny' END AS outcome,
  CASE WHEN balance >= $amount THEN balance - $amount ELSE balance END AS sender_balance
FROM balances
WHERE account = $sender;

UPDATE balances SET balance = balance - $amount WHERE account = $sender AND balance >= $amount;
